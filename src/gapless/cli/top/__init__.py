"""`gapless top`: what a whole network is doing, drawn again and again."""
