"""Questions and answers, the site and its gate, the house, and the transports between them."""
