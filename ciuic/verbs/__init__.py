"""What a user can ask for; each verb takes an open store and plain values, and returns a report."""
