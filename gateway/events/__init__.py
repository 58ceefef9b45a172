"""Events for other programs: the feed and webhooks."""
