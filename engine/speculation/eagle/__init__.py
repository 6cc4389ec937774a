"""EAGLE heads (https://arxiv.org/abs/2401.15077, 2406.16858, 2503.01840): layouts, arithmetic, drafting."""
