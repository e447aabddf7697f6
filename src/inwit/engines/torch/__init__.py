"""The torch engine: sampler and learner in one process."""

from inwit.engines.torch.engine import LoraSettings, TorchEngine, TorchPolicy, TorchSettings
from inwit.engines.torch.loading import Loaded, load_model

__all__ = ["Loaded", "LoraSettings", "TorchEngine", "TorchPolicy", "TorchSettings", "load_model"]
