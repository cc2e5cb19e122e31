"""The words of generated people, songs, notes, emails and tasks."""

from __future__ import annotations

from typing import Final

FIRST_NAMES: Final = (
    ("Alba", "female"), ("Bruno", "male"), ("Celine", "female"), ("Dmitri", "male"), ("Esther", "female"),
    ("Farid", "male"), ("Greta", "female"), ("Hugo", "male"), ("Ines", "female"), ("Jonas", "male"),
    ("Katya", "female"), ("Lorenzo", "male"),
)  # fmt: skip
"""First names with the sex on record. AppWorld wants every first name once."""

LAST_NAMES: Final = (
    "Abel", "Brandt", "Castro", "Dahl", "Engel", "Fabre", "Grimm", "Holm", "Ivanov", "Jansen", "Keller", "Lindt",
)  # fmt: skip
ADJECTIVES: Final = (
    "Amber", "Broken", "Crimson", "Distant", "Electric", "Frozen", "Golden", "Hollow", "Idle", "Jagged", "Lonely",
    "Midnight", "Northern", "Paper", "Quiet", "Restless", "Silver", "Velvet",
)  # fmt: skip
NOUNS: Final = (
    "Avenue", "Bridge", "Candle", "Desert", "Engine", "Forest", "Garden", "Harbour", "Island", "Lantern", "Mirror",
    "Ocean", "Planet", "River", "Shadow", "Station", "Summer", "Window",
)  # fmt: skip
GENRES: Final = ("ambient", "blues", "folk", "jazz", "rock")
ARTISTS: Final = (
    "The Slow Trains", "Marisol Vane", "Tin Orchard", "Kestrel & Co", "Halftone", "Juniper Low", "Night Ferry",
    "The Paper Kings", "Solveig Brun", "Copper Fields",
)  # fmt: skip
ALBUM_WORDS: Final = (
    "Letters",
    "Maps",
    "Signals",
    "Echoes",
    "Seasons",
    "Corners",
    "Postcards",
    "Fragments",
)
PLAYLISTS: Final = (
    "Morning run",
    "Long drive",
    "Cooking",
    "Late work",
    "Rainy Sunday",
    "Focus",
    "Party",
    "Old days",
)
NEW_PLAYLISTS: Final = (
    "Fresh start",
    "Evening mix",
    "Weekend picks",
    "Travel mix",
    "Calm hours",
    "Kitchen radio",
)

NOTE_TAGS: Final = ("travel", "recipes", "ideas", "health", "books", "garden")
NOTE_TITLES: Final = (
    "Packing for the coast", "Lentil soup", "Names for the boat", "Stretching plan", "Reading list", "Tomato beds",
    "Questions for the landlord", "Birthday gifts", "Bike repairs", "Museum opening hours", "Bread with rye",
    "Winter tyres", "Phrases in Portuguese", "Paint colours", "Film club", "Photo prints",
)  # fmt: skip
SENTENCES: Final = (
    "Ask about this again next week.", "It costs less in spring.", "The second option looked better.",
    "Check the dates before booking.", "Nothing urgent here.", "Compare it with last year.",
    "The address is on the old letter.", "Two hours should be enough.", "Bring the blue folder.",
)  # fmt: skip
ALARM_LABELS: Final = (
    "Wake up", "Gym", "Medicine", "Feed the cat", "Stand-up", "Water plants", "Lights out", "Call home", "School bus",
)  # fmt: skip
MONEY_NOTES: Final = (
    "dinner", "taxi", "concert tickets", "groceries", "coffee", "birthday present", "petrol", "cinema", "books",
)  # fmt: skip
SUBJECTS: Final = (
    "Minutes of the meeting", "Holiday photos", "Question about the lease", "Your parcel", "Recipe you asked for",
    "Plans for Saturday", "Draft of the report", "Choir practice", "Neighbours' party", "Lost umbrella",
)  # fmt: skip
PROJECTS: Final = (
    "Moving house",
    "Spring cleaning",
    "Book fair",
    "Garden shed",
    "Website",
    "School trip",
)
CHORES: Final = (
    "Buy boxes", "Call the plumber", "Measure the hall", "Order chairs", "Print the flyers", "Ask for quotes",
    "Pay the deposit", "Clean the gutters", "Sort the cables", "Book the van", "Write the invitation",
    "Return the keys", "Fix the hinge", "Collect the signs", "Label the shelves", "Test the lamps", "Update the list",
    "Pack the dishes",
)  # fmt: skip
FILE_NAMES: Final = (
    "budget",
    "cv",
    "tickets",
    "manual",
    "contract",
    "route",
    "scores",
    "inventory",
)
FOLDERS: Final = ("documents", "downloads", "notes")
EXPENSES: Final = (
    "Ski weekend",
    "Lake cabin",
    "City trip",
    "Garden party",
    "Band rehearsal",
)
MESSAGES: Final = (
    "I am running ten minutes late.", "The party moves to Friday.", "Please bring a chair tonight.",
    "The match is cancelled.", "Dinner is at eight.", "We meet at the north gate.",
)  # fmt: skip
