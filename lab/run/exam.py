"""Questions written for the lab: what a language model is asked so that a loss of knowledge shows, and not of style.

A question is a beginning and four ways to go on, the first of which is right; a model answers with the way that it
finds likeliest. Ways are one word each, so that length decides nothing. PROMPTS are what answers are written to.
"""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    beginning: str
    right: str
    wrong: tuple[str, str, str]

    @property
    def ways(self) -> tuple[str, ...]:
        return (self.right, *self.wrong)


def _questions(text: str) -> tuple[Question, ...]:
    """One a line: beginning | right | wrong | wrong | wrong."""
    found = []
    for line in text.strip().splitlines():
        beginning, right, *wrong = (part.strip() for part in line.split("|"))
        found.append(Question(beginning, right, (wrong[0], wrong[1], wrong[2])))
    return tuple(found)


CLOZE = _questions("""
She put the letter into an envelope and wrote the | address | weather | kitchen | music
It was raining, so he opened his | umbrella | book | window | wallet
The baby was tired and began to | cry | drive | write | vote
He was thirsty, so he drank a glass of | water | paper | stone | wood
The sun rises in the morning and sets in the | evening | spring | kitchen | garden
To cut the bread she took a sharp | knife | pillow | spoon | shirt
The dog chased the cat up a | tree | cloud | river | letter
Before going to bed he brushed his | teeth | car | shoes | garden
In winter the lake was covered with | ice | sand | grass | leaves
The teacher wrote the answer on the | board | river | bread | moon
She was late because she missed the | bus | sky | soup | wall
After the long walk their feet were | sore | loud | sweet | green
The farmer milked the | cows | fields | trees | tractors
He locked the door with a | key | cup | song | coat
The pilot landed the | plane | horse | novel | soup
They lit a fire to stay | warm | late | blue | hungry
The library is full of | books | fish | clouds | tires
She looked at her watch to see the | time | sea | price | music
The soup was too hot to | eat | read | climb | wear
The doctor told him to take the | medicine | mountain | window | bicycle
Birds build their nests in | trees | cups | books | shoes
He turned on the lamp because the room was | dark | wide | cold | late
The child blew out the candles on the birthday | cake | tree | table | shirt
A triangle has three | sides | wheels | doors | hours
The opposite of hot is | cold | tall | loud | new
Fish swim in the | sea | sky | desert | oven
They cheered because their team had | won | slept | melted | lost
The thief was arrested by the | police | teacher | baker | singer
The carpenter hit the nail with a | hammer | towel | feather | lemon
At night we can see the moon and the | stars | shops | fish | cows
The ship sailed across the | ocean | ceiling | carpet | forest
He put on his coat because it was | cold | hot | funny | cheap
The painter bought a new | brush | engine | potato | boat
She planted the seeds in the | garden | piano | mirror | bottle
The train stopped at the | station | kitchen | bottle | hospital
The audience clapped when the singer had finished her | song | lunch | homework | shower
We keep milk in the | fridge | drawer | garden | wallet
The bees make | honey | bread | wool | glass
The car would not start because the battery was | dead | happy | tall | sweet
He cut his finger, and it began to | bleed | sing | shine | bark
The king lived in a | castle | bottle | basket | nest
She wore sunglasses because the sun was so | bright | quiet | slow | heavy
The cook added salt and | pepper | gravel | ink | sand
In autumn the leaves fall from the | trees | clouds | roofs | books
They paddled down the river in a | canoe | bus | tent | chair
The judge sent the murderer to | prison | lunch | school | bed
You can buy stamps at the post | office | card | river | garden
The glass fell on the floor and | broke | slept | grew | sang
He was so hungry that he ate the whole | pizza | table | chair | plate
The spider caught a fly in its | web | car | hat | shoe
The snow melted when the weather grew | warm | dark | loud | cold
She paid for the bread with a handful of | coins | leaves | stones | hairs
The mother told her son to wash his dirty | hands | homework | dreams | voice
To see the tiny cells she used a | microscope | hammer | trumpet | blanket
The hikers pitched their tent near the | lake | ceiling | pillow | oven
The musician tuned his | guitar | dinner | carpet | garden
The astronaut flew to the | moon | kitchen | bank | farm
The firefighters put out the | fire | dog | cat | light
When the light turned red, the driver | stopped | flew | slept | swam
The rabbit hid in its | hole | piano | cup | hat
He saved his money in the | bank | soup | rain | zoo
The tailor sewed a button onto the | shirt | bread | lake | bell
The movie was so sad that she began to | cry | laugh | fly | cook
The old man walked slowly with his | cane | cake | cloud | lake
""")
"""Sentences whose last word the rest of them demands."""

FACTS = _questions("""
The capital of France is | Paris | London | Rome | Madrid
The capital of Japan is | Tokyo | Beijing | Seoul | Delhi
The capital of Italy is | Rome | Paris | Athens | Vienna
The capital of Egypt is | Cairo | Athens | Paris | Baghdad
The capital of Germany is | Berlin | Munich | Vienna | Paris
The capital of Russia is | Moscow | Warsaw | Kiev | Berlin
The capital of Spain is | Madrid | Lisbon | Rome | Paris
The capital of the United Kingdom is | London | Dublin | Paris | Boston
The capital of Greece is | Athens | Rome | Cairo | Sofia
The capital of China is | Beijing | Tokyo | Seoul | Delhi
The metal that rusts is | iron | gold | glass | wood
The largest planet of the solar system is | Jupiter | Mars | Venus | Earth
The planet closest to the Sun is | Mercury | Saturn | Mars | Neptune
The red planet is | Mars | Venus | Saturn | Uranus
The Earth moves around the | Sun | Moon | Mars | clouds
The gas that we need to breathe is | oxygen | helium | neon | methane
Plants take in carbon | dioxide | oxygen | water | salt
The largest ocean is the | Pacific | Atlantic | Arctic | Indian
The largest mammal is the blue | whale | shark | bear | bird
The animal that gives us wool is the | sheep | horse | cow | pig
The author of Romeo and Juliet is William | Shakespeare | Dickens | Newton | Darwin
The theory of relativity was found by Albert | Einstein | Newton | Darwin | Mozart
Evolution by natural selection was described by Charles | Darwin | Newton | Einstein | Dickens
The first man on the Moon was Neil | Armstrong | Newton | Young | Diamond
The first president of the United States was George | Washington | Lincoln | Bush | Orwell
The Declaration of Independence was written by Thomas | Jefferson | Edison | Newton | Lincoln
The telephone was invented by Alexander Graham | Bell | Ford | Green | Hill
The painter of the Mona Lisa is Leonardo da | Vinci | Rome | Paris | Milan
Napoleon was an emperor of | France | Spain | China | Mexico
The Second World War ended with the surrender of Japan, after that of | Germany | Canada | France | Britain
A week has seven | days | hours | months | years
A year has twelve | months | weeks | days | hours
A minute has sixty | seconds | hours | days | weeks
A century is a hundred | years | days | months | minutes
When water boils it turns into | steam | ice | oil | sand
The human heart pumps | blood | air | water | food
We see with our | eyes | ears | hands | feet
We hear with our | ears | eyes | hands | teeth
The language spoken in Brazil is | Portuguese | Spanish | French | English
The language spoken in Mexico is | Spanish | French | German | Italian
The currency of Germany is the | euro | dollar | pound | coin
The currency of the United States is the | dollar | euro | coin | pound
The Great Wall is in | China | India | Mexico | Italy
The Eiffel Tower is in | Paris | London | Rome | Berlin
The pyramids of Giza are in | Egypt | Greece | Mexico | India
The Statue of Liberty stands in New | York | Jersey | Orleans | Mexico
The river Nile is in | Africa | Europe | Asia | America
The Amazon rainforest is in South | America | Africa | Asia | Korea
Kangaroos live in | Australia | Europe | Canada | Russia
Pandas eat | bamboo | meat | fish | bread
Two plus two is | four | five | six | three
Half of ten is | five | four | two | six
A square has four | sides | wheels | legs | eyes
A spider has eight | legs | wings | tails | heads
The color of grass is | green | blue | red | white
The color of the sky on a clear day is | blue | green | red | black
Ice is frozen | water | air | milk | sand
Diamonds are made of | carbon | iron | gold | glass
The force that pulls things to the ground is | gravity | light | heat | sound
The center of an atom is its | nucleus | shell | wave | orbit
The cells of our blood that carry oxygen are | red | white | blue | green
The largest continent is | Asia | Africa | Europe | Australia
The director of the orchestra is called the | conductor | pilot | captain | singer
A baby dog is called a | puppy | kitten | calf | cub
The study of living things is called | biology | physics | history | grammar
The freezing season of the year is | winter | summer | spring | autumn
""")
"""What a small model knows of the world."""

PROMPTS = (
    "The best way to learn a new language is",
    "Once upon a time, in a small village by the sea,",
    "To bake a simple loaf of bread, first",
    "The history of the printing press begins",
    "In Python, a list and a tuple differ in that",
    "Dear Sir or Madam, I am writing to",
    "The three most important inventions of all time are",
    "My favourite season is autumn, because",
    "Photosynthesis is the process by which",
    "The difference between weather and climate is",
    "When the old clock struck midnight, the detective",
    "A good night's sleep matters because",
    "To solve a quadratic equation, you",
    "The city of Rome was founded",
    "If you want to grow tomatoes at home,",
    "The main causes of the First World War were",
    "def fibonacci(n):",
    "A computer's memory is used to",
    "The moon affects the tides because",
    "Here is a short poem about rain:",
    "The most common mistakes in job interviews are",
    "Regular exercise improves your health by",
    "The internet works by",
    "In economics, supply and demand",
)
