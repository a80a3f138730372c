"""A site's patients: tables read from files, databases and data frames, and queries over them."""
