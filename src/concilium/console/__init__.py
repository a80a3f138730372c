"""The web side: a gateway for messages in flight, and the pages."""
