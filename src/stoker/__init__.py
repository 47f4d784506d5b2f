"""stoker keeps GPUs fed. The public names, loaded when first used: `import stoker` imports neither torch nor pyarrow."""

from __future__ import annotations
