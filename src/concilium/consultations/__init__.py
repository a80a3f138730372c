"""Questions about patients like one of ours, answered from one release of counts."""
