"""What verl imports: VERL_USE_EXTERNAL_MODULES=hgpo_verl.plugin registers the agent loop and the trainer."""

from hgpo_verl.agent_loop import StepsAgentLoop
from hgpo_verl.trainer import HgpoTrainer

__all__ = ["HgpoTrainer", "StepsAgentLoop"]
