"""How a house reaches its sites: in one process, or across machines."""
