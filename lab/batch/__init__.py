"""A batch job: a file of inputs through a served model into a file of answers, whatever happens on the way.

    table.py ──rows──▶ shards ──packing.py──▶ asking.py ──answers──▶ parts.py ──assembled──▶ OUT
                                                 Triton                a part a shard

job.py runs it. A shard is what is done or not done: killed at any moment, the same command goes on behind the last
part that is whole, and OUT has the same bytes as if nothing had happened.
"""
