"""Programs for those who work on Milepost; none of them is part of the package."""
