"""What watches over everything that broker is made of and does not make itself: locks, licences, bills, audits."""
