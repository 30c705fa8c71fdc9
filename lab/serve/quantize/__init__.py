"""How integer weights are found: from a Llama's floats and, for most ways, from texts that show what its layers see.

    recipe.py        what is wanted, and whether it can be
    grid.py          values on a grid: rounding, packing, the tensors of a stored matrix; round-to-nearest ("rtn")
    gptq.py          the columns one after the other, each making up for the error of those before
    scales.py        AWQ and SmoothQuant: columns are widened before rounding, and narrowed again upstream
    block.py         one block of a Llama in fp32, matrix by matrix, with the inputs that each matrix sees
    prose.py         the texts to look at, and those kept for judging
    build.py         all of it for a folder, block by block; run as a process: python -m lab.serve.quantize
    scheme.py        what config.json says of weights that others quantized: GPTQ, AWQ, compressed-tensors
    checkpoints.py   their matrices

lab/serve/quantized.py says where the results lie and starts the process. recipe, scheme and prose need no torch.
"""
