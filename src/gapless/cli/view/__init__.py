"""`gapless view`: create, explain and watch views."""
