"""What is measured, side by side with peers. Every script exits non-zero when a bar is missed."""
