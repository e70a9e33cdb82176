"""Networks: backbones, and heads on top of them."""
