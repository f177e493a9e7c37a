"""Tools of the book's authors; nothing in the package imports them."""
