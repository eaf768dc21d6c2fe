"""What devices send to each other by `ppermute`: parts that go round, edges, or elements."""
