"""Training of draft heads on text that the target model writes itself."""
