"""Rules by which a target's pass accepts drafts: one file each."""
