"""What is said of replays: which setting to use, and the page that shows why."""
