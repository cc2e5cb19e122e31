"""Where WebShop's catalogues come from: the official raw files, built once; and the tasks made of them."""
