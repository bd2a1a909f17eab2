"""The trainings that the demo starts, kills and starts again, one module a framework: ``python -m MODULE JOB``.

``JOB`` is a JSON object: ``folder``, ``name`` (of this start), ``plugin``, ``seed``, ``epochs``, ``save_steps``. What a
start did is left in ``folder``, for a parent process that need not know any framework::

    NAME.jsonl   a line when it begins (``begins_at``: optimizer steps that lie behind it), then a line for each batch
    NAME.json    at the end of the training: digests of the final state, and the accuracy on held-out data
    checkpoints  whatever the plugin saves; or the framework alone, as ``step=25...`` or ``checkpoint-25``
"""
