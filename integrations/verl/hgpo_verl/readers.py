"""Where verl 0.9.1 reads the settings that a launch file sets: its file, and an expression of it, by the setting.

A key that a version of verl has in its configuration, and that nothing reads, is silently without effect.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.9.1"

_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_MODEL: Final = "actor_rollout_ref.model"

_READ: Final = {
    "utils/dataset/rl_dataset.py": {
        "data.custom_cls.path": "data_config.custom_cls.path",
        "data.custom_cls.name": "data_config.custom_cls.name",
    },
    "trainer/ppo/utils.py": {
        "data.shuffle": "data_config.shuffle",
        "data.seed": 'data_config.get("seed")',
        "algorithm.adv_estimator": "config.algorithm.adv_estimator",
    },
    "trainer/ppo/v1/trainer_base.py": {
        "data.validation_shuffle": 'data.get("validation_shuffle"',
        "data.dataloader_num_workers": 'data["dataloader_num_workers"]',
        "data.train_files": "config.data.train_files",
        "data.val_files": "config.data.val_files",
        "data.train_batch_size": "config.data.train_batch_size",
        "algorithm.use_kl_in_reward": "config.algorithm.use_kl_in_reward",
        f"{_ACTOR}.shuffle": "actor_rollout_ref.actor.shuffle",
        f"{_ACTOR}.data_loader_seed": "actor_rollout_ref.actor.data_loader_seed",
        f"{_ACTOR}.ppo_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
        f"{_ACTOR}.ppo_epochs": "actor_rollout_ref.actor.ppo_epochs",
        "trainer.v1.sampler.custom_sampler.path": 'custom_sampler.get("path")',
        "trainer.v1.sampler.custom_sampler.name": 'custom_sampler.get("name")',
        "trainer.total_epochs": "config.trainer.total_epochs",
        "trainer.n_gpus_per_node": "config.trainer.n_gpus_per_node",
        "trainer.nnodes": "config.trainer.nnodes",
        "trainer.default_local_dir": "config.trainer.default_local_dir",
        "trainer.experiment_name": "config.trainer.experiment_name",
        "trainer.project_name": "config.trainer.project_name",
        "trainer.total_training_steps": "config.trainer.total_training_steps",
        "trainer.test_freq": "config.trainer.test_freq",
        "trainer.val_before_train": '"val_before_train"',
        "trainer.save_freq": "config.trainer.save_freq",
        "trainer.max_actor_ckpt_to_keep": '"max_actor_ckpt_to_keep"',
        "trainer.logger": "config.trainer.logger",
    },
    "trainer/config/rollout/rollout.yaml": {
        "data.max_prompt_length": "oc.select:data.max_prompt_length",
        "data.max_response_length": "oc.select:data.max_response_length",
    },
    "workers/engine_workers.py": {
        f"{_ACTOR}.strategy": "config.actor.strategy",
        f"{_ACTOR}.use_dynamic_bsz": "config.actor.use_dynamic_bsz",
        f"{_ACTOR}.ppo_max_token_len_per_gpu": "config.actor.ppo_max_token_len_per_gpu",
        f"{_ROLLOUT}.tensor_model_parallel_size": "rollout_config.tensor_model_parallel_size",
        f"{_MODEL}.use_remove_padding": 'model_config.get("use_remove_padding"',
    },
    "workers/engine/fsdp/transformer_impl.py": {
        f"{_ACTOR}.fsdp_config.seed": "engine_config.seed",
        f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype": 'mixed_precision_config.get("param_dtype"',
        f"{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype": 'mixed_precision_config.get("reduce_dtype"',
        f"{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype": 'mixed_precision_config.get("buffer_dtype"',
        f"{_ACTOR}.fsdp_config.optimizer_offload": "engine_config.optimizer_offload",
        f"{_ACTOR}.optim.lr_scheduler_type": "optim_config.lr_scheduler_type",
        f"{_ACTOR}.optim.lr_warmup_steps": "optim_config.lr_warmup_steps",
        f"{_ACTOR}.optim.clip_grad": "optimizer_config.clip_grad",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype": "engine_config.mixed_precision",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision.reduce_dtype": "engine_config.mixed_precision",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision.buffer_dtype": "engine_config.mixed_precision",
        "actor_rollout_ref.ref.fsdp_config.param_offload": "engine_config.param_offload",
        f"{_MODEL}.enable_gradient_checkpointing": "model_config.enable_gradient_checkpointing",
        f"{_MODEL}.lora_rank": "model_config.lora_rank",
        f"{_MODEL}.lora_alpha": "model_config.lora_alpha",
        f"{_MODEL}.target_modules": "model_config.target_modules",
    },
    "workers/utils/losses.py": {
        f"{_ACTOR}.loss_agg_mode": "config.loss_agg_mode",
        f"{_ACTOR}.use_kl_loss": "config.use_kl_loss",
        f"{_ACTOR}.kl_loss_coef": "config.kl_loss_coef",
        f"{_ACTOR}.kl_loss_type": "config.kl_loss_type",
        f"{_ACTOR}.entropy_coeff": "config.entropy_coeff",
    },
    "trainer/ppo/core_algos.py": {
        f"{_ACTOR}.clip_ratio": "config.clip_ratio",
        f"{_ACTOR}.clip_ratio_low": "config.clip_ratio_low",
        f"{_ACTOR}.clip_ratio_high": "config.clip_ratio_high",
        f"{_ACTOR}.clip_ratio_c": '"clip_ratio_c"',
    },
    "workers/config/optimizer.py": {
        f"{_ACTOR}.optim.lr": '"lr": config.lr',
        f"{_ACTOR}.optim.weight_decay": "config.weight_decay",
        f"{_ACTOR}.optim.betas": "config.betas",
        f"{_ACTOR}.optim.override_optimizer_config.eps": "update(config.override_optimizer_config)",
    },
    "trainer/ppo/v1/agent_loop_tq.py": {
        f"{_ROLLOUT}.top_p": "top_p=config.top_p",
        f"{_ROLLOUT}.top_k": "top_k=config.top_k",
        f"{_ROLLOUT}.temperature": "temperature=config.temperature",
        f"{_ROLLOUT}.calculate_log_probs": "config.calculate_log_probs",
        f"{_ROLLOUT}.n": "config.n if not",
        f"{_ROLLOUT}.val_kwargs.n": "config.val_kwargs.n",
        f"{_ROLLOUT}.val_kwargs.top_p": "config.val_kwargs.top_p",
        f"{_ROLLOUT}.val_kwargs.temperature": "config.val_kwargs.temperature",
        f"{_ROLLOUT}.agent.default_agent_loop": "config.agent.default_agent_loop",
    },
    "utils/config.py": {
        f"{_ROLLOUT}.val_kwargs.do_sample": "val_kwargs.do_sample",
    },
    "trainer/main_ppo.py": {
        f"{_ROLLOUT}.agent.agent_loop_manager_class": '.get("agent_loop_manager_class")',
        "trainer.v1.trainer_mode": "config.trainer.v1.trainer_mode",
    },
    "workers/rollout/llm_server.py": {
        f"{_ROLLOUT}.name": "rollout_config.name",
    },
    "workers/rollout/vllm_rollout/vllm_async_server.py": {
        f"{_ROLLOUT}.seed": "self.config.seed",
        f"{_ROLLOUT}.dtype": "self.config.dtype",
        f"{_ROLLOUT}.max_model_len": "self.config.max_model_len",
        f"{_ROLLOUT}.gpu_memory_utilization": "self.config.gpu_memory_utilization",
        f"{_ROLLOUT}.max_num_seqs": "self.config.max_num_seqs",
        f"{_ROLLOUT}.max_num_batched_tokens": "self.config.max_num_batched_tokens",
        f"{_ROLLOUT}.enforce_eager": "self.config.enforce_eager",
        f"{_ROLLOUT}.enable_prefix_caching": "self.config.enable_prefix_caching",
        f"{_ROLLOUT}.enable_chunked_prefill": "self.config.enable_chunked_prefill",
    },
    "workers/config/model.py": {
        f"{_MODEL}.path": "copy_to_local(self.path",
        f"{_MODEL}.override_config.attn_implementation": 'override_config.get("attn_implementation"',
    },
    "__init__.py": {
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES": "VERL_USE_EXTERNAL_MODULES",
    },
}
"""Expressions by the setting that they read, by file."""

READERS: Final = {
    name: (file, expression)
    for file, settings in _READ.items()
    for name, expression in settings.items()
}
