"""From a user's files to a recipe that is fitted to them: what is in them, what follows, and the recipe's text."""
