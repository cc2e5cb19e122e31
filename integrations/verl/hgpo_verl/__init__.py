"""HGPO's environments, estimators and step tables in verl's trainer.

`hgpo_verl.translate` needs only `hgpo`. verl imports `hgpo_verl.plugin` (VERL_USE_EXTERNAL_MODULES), which registers
the agent loop and the trainer.
"""
