"""Where verl 0.9.1 reads the settings that a launch file sets: its file, and an expression of it, by the setting.

A key that a version of verl has in its configuration, and that nothing reads, is silently without effect.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.9.1"

_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_MODEL: Final = "actor_rollout_ref.model"
_BASE: Final = "trainer/ppo/v1/trainer_base.py"
_FSDP: Final = "workers/engine/fsdp/transformer_impl.py"
_WORKERS: Final = "workers/engine_workers.py"
_LOSSES: Final = "workers/utils/losses.py"
_ALGORITHMS: Final = "trainer/ppo/core_algos.py"
_OPTIMIZER: Final = "workers/config/optimizer.py"
_VLLM: Final = "workers/rollout/vllm_rollout/vllm_async_server.py"
_LOOP: Final = "trainer/ppo/v1/agent_loop_tq.py"

READERS: Final[dict[str, tuple[str, str]]] = {
    "data.custom_cls.path": (
        "utils/dataset/rl_dataset.py",
        "data_config.custom_cls.path",
    ),
    "data.custom_cls.name": (
        "utils/dataset/rl_dataset.py",
        "data_config.custom_cls.name",
    ),
    "data.shuffle": ("trainer/ppo/utils.py", "data_config.shuffle"),
    "data.validation_shuffle": (_BASE, 'data.get("validation_shuffle"'),
    "data.dataloader_num_workers": (_BASE, 'data["dataloader_num_workers"]'),
    "data.seed": ("trainer/ppo/utils.py", 'data_config.get("seed")'),
    "data.train_files": (_BASE, "config.data.train_files"),
    "data.val_files": (_BASE, "config.data.val_files"),
    "data.train_batch_size": (_BASE, "config.data.train_batch_size"),
    "data.max_prompt_length": (
        "trainer/config/rollout/rollout.yaml",
        "oc.select:data.max_prompt_length",
    ),
    "data.max_response_length": (
        "trainer/config/rollout/rollout.yaml",
        "oc.select:data.max_response_length",
    ),
    "algorithm.adv_estimator": (
        "trainer/ppo/utils.py",
        "config.algorithm.adv_estimator",
    ),
    "algorithm.use_kl_in_reward": (_BASE, "config.algorithm.use_kl_in_reward"),
    f"{_ACTOR}.strategy": (_WORKERS, "config.actor.strategy"),
    f"{_ACTOR}.shuffle": (_BASE, "actor_rollout_ref.actor.shuffle"),
    f"{_ACTOR}.data_loader_seed": (_BASE, "actor_rollout_ref.actor.data_loader_seed"),
    f"{_ACTOR}.fsdp_config.seed": (_FSDP, "engine_config.seed"),
    f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype": (
        _FSDP,
        'mixed_precision_config.get("param_dtype"',
    ),
    f"{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype": (
        _FSDP,
        'mixed_precision_config.get("reduce_dtype"',
    ),
    f"{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype": (
        _FSDP,
        'mixed_precision_config.get("buffer_dtype"',
    ),
    f"{_ACTOR}.fsdp_config.optimizer_offload": (
        _FSDP,
        "engine_config.optimizer_offload",
    ),
    f"{_ACTOR}.ppo_mini_batch_size": (
        _BASE,
        "actor_rollout_ref.actor.ppo_mini_batch_size",
    ),
    f"{_ACTOR}.ppo_epochs": (_BASE, "actor_rollout_ref.actor.ppo_epochs"),
    f"{_ACTOR}.use_dynamic_bsz": (_WORKERS, "config.actor.use_dynamic_bsz"),
    f"{_ACTOR}.ppo_max_token_len_per_gpu": (
        _WORKERS,
        "config.actor.ppo_max_token_len_per_gpu",
    ),
    f"{_ACTOR}.loss_agg_mode": (_LOSSES, "config.loss_agg_mode"),
    f"{_ACTOR}.clip_ratio": (_ALGORITHMS, "config.clip_ratio"),
    f"{_ACTOR}.clip_ratio_low": (_ALGORITHMS, "config.clip_ratio_low"),
    f"{_ACTOR}.clip_ratio_high": (_ALGORITHMS, "config.clip_ratio_high"),
    f"{_ACTOR}.clip_ratio_c": (_ALGORITHMS, '"clip_ratio_c"'),
    f"{_ACTOR}.use_kl_loss": (_LOSSES, "config.use_kl_loss"),
    f"{_ACTOR}.kl_loss_coef": (_LOSSES, "config.kl_loss_coef"),
    f"{_ACTOR}.kl_loss_type": (_LOSSES, "config.kl_loss_type"),
    f"{_ACTOR}.entropy_coeff": (_LOSSES, "config.entropy_coeff"),
    f"{_ACTOR}.optim.lr": (_OPTIMIZER, '"lr": config.lr'),
    f"{_ACTOR}.optim.weight_decay": (_OPTIMIZER, "config.weight_decay"),
    f"{_ACTOR}.optim.betas": (_OPTIMIZER, "config.betas"),
    f"{_ACTOR}.optim.override_optimizer_config.eps": (
        _OPTIMIZER,
        "update(config.override_optimizer_config)",
    ),
    f"{_ACTOR}.optim.lr_scheduler_type": (_FSDP, "optim_config.lr_scheduler_type"),
    f"{_ACTOR}.optim.lr_warmup_steps": (_FSDP, "optim_config.lr_warmup_steps"),
    f"{_ACTOR}.optim.clip_grad": (_FSDP, "optimizer_config.clip_grad"),
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype": (
        _FSDP,
        "engine_config.mixed_precision",
    ),
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.reduce_dtype": (
        _FSDP,
        "engine_config.mixed_precision",
    ),
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.buffer_dtype": (
        _FSDP,
        "engine_config.mixed_precision",
    ),
    "actor_rollout_ref.ref.fsdp_config.param_offload": (
        _FSDP,
        "engine_config.param_offload",
    ),
    f"{_ROLLOUT}.top_p": (_LOOP, "top_p=config.top_p"),
    f"{_ROLLOUT}.top_k": (_LOOP, "top_k=config.top_k"),
    f"{_ROLLOUT}.temperature": (_LOOP, "temperature=config.temperature"),
    f"{_ROLLOUT}.calculate_log_probs": (_LOOP, "config.calculate_log_probs"),
    f"{_ROLLOUT}.n": (_LOOP, "config.n if not"),
    f"{_ROLLOUT}.val_kwargs.n": (_LOOP, "config.val_kwargs.n"),
    f"{_ROLLOUT}.val_kwargs.top_p": (_LOOP, "config.val_kwargs.top_p"),
    f"{_ROLLOUT}.val_kwargs.temperature": (_LOOP, "config.val_kwargs.temperature"),
    f"{_ROLLOUT}.val_kwargs.do_sample": ("utils/config.py", "val_kwargs.do_sample"),
    f"{_ROLLOUT}.agent.default_agent_loop": (_LOOP, "config.agent.default_agent_loop"),
    f"{_ROLLOUT}.agent.agent_loop_manager_class": (
        "trainer/main_ppo.py",
        '.get("agent_loop_manager_class")',
    ),
    f"{_ROLLOUT}.name": ("workers/rollout/llm_server.py", "rollout_config.name"),
    f"{_ROLLOUT}.seed": (_VLLM, "self.config.seed"),
    f"{_ROLLOUT}.dtype": (_VLLM, "self.config.dtype"),
    f"{_ROLLOUT}.max_model_len": (_VLLM, "self.config.max_model_len"),
    f"{_ROLLOUT}.tensor_model_parallel_size": (
        _WORKERS,
        "rollout_config.tensor_model_parallel_size",
    ),
    f"{_ROLLOUT}.gpu_memory_utilization": (_VLLM, "self.config.gpu_memory_utilization"),
    f"{_ROLLOUT}.max_num_seqs": (_VLLM, "self.config.max_num_seqs"),
    f"{_ROLLOUT}.max_num_batched_tokens": (_VLLM, "self.config.max_num_batched_tokens"),
    f"{_ROLLOUT}.enforce_eager": (_VLLM, "self.config.enforce_eager"),
    f"{_ROLLOUT}.enable_prefix_caching": (_VLLM, "self.config.enable_prefix_caching"),
    f"{_ROLLOUT}.enable_chunked_prefill": (_VLLM, "self.config.enable_chunked_prefill"),
    f"{_MODEL}.path": ("workers/config/model.py", "copy_to_local(self.path"),
    f"{_MODEL}.override_config.attn_implementation": (
        "workers/config/model.py",
        'override_config.get("attn_implementation"',
    ),
    f"{_MODEL}.enable_gradient_checkpointing": (
        _FSDP,
        "model_config.enable_gradient_checkpointing",
    ),
    f"{_MODEL}.use_remove_padding": (_WORKERS, 'model_config.get("use_remove_padding"'),
    f"{_MODEL}.lora_rank": (_FSDP, "model_config.lora_rank"),
    f"{_MODEL}.lora_alpha": (_FSDP, "model_config.lora_alpha"),
    f"{_MODEL}.target_modules": (_FSDP, "model_config.target_modules"),
    "trainer.v1.trainer_mode": (
        "trainer/main_ppo.py",
        "config.trainer.v1.trainer_mode",
    ),
    "trainer.v1.sampler.custom_sampler.path": (_BASE, 'custom_sampler.get("path")'),
    "trainer.v1.sampler.custom_sampler.name": (_BASE, 'custom_sampler.get("name")'),
    "trainer.total_epochs": (_BASE, "config.trainer.total_epochs"),
    "trainer.n_gpus_per_node": (_BASE, "config.trainer.n_gpus_per_node"),
    "trainer.nnodes": (_BASE, "config.trainer.nnodes"),
    "trainer.default_local_dir": (_BASE, "config.trainer.default_local_dir"),
    "trainer.experiment_name": (_BASE, "config.trainer.experiment_name"),
    "trainer.project_name": (_BASE, "config.trainer.project_name"),
    "trainer.total_training_steps": (_BASE, "config.trainer.total_training_steps"),
    "trainer.test_freq": (_BASE, "config.trainer.test_freq"),
    "trainer.val_before_train": (_BASE, '"val_before_train"'),
    "trainer.save_freq": (_BASE, "config.trainer.save_freq"),
    "trainer.max_actor_ckpt_to_keep": (_BASE, '"max_actor_ckpt_to_keep"'),
    "trainer.logger": (_BASE, "config.trainer.logger"),
    "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES": (
        "__init__.py",
        "VERL_USE_EXTERNAL_MODULES",
    ),
}
