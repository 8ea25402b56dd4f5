#!/usr/bin/env python3
"""The failures that the ledger excuses, and the successes that it asks for."""
import unittest

from ledger import FROZEN_S, KILLED_S, REPLICA_S, Call, Fault, Ledger

W = "http://w:1"


class Excuses(unittest.TestCase):
    def excused(self, kind, target=W, **call):
        ledger = Ledger()
        ledger.faults.append(Fault(kind, target, start=10.0, end=12.0))
        call = {"start": 9.0, "end": 10.5, "worker": W, "begun": True} | call
        return ledger.excuse(Call("c", **call)) is not None

    def test_only_what_was_killed_or_frozen_takes_answers_along(self):
        for kind, expected in (("worker killed", True), ("worker frozen", True), ("worker drained", False),
                               ("worker removed", False), ("replica restarted", False)):
            self.assertEqual(self.excused(kind), expected, kind)

    def test_an_answer_that_had_not_begun_is_another_workers(self):
        self.assertFalse(self.excused("worker killed", begun=False))
        self.assertFalse(self.excused("worker killed", worker="http://other:1"))

    def test_each_excuse_has_its_time(self):
        self.assertFalse(self.excused("worker killed", end=10.1 + KILLED_S))
        self.assertTrue(self.excused("worker frozen", end=10.1 + KILLED_S))
        self.assertFalse(self.excused("worker frozen", end=10.1 + FROZEN_S))
        self.assertTrue(self.excused("replica killed", target="r1", replica="r1"))
        self.assertFalse(self.excused("replica killed", target="r1", replica="r2"))
        self.assertFalse(self.excused("replica killed", target="r1", replica="r1", end=10.1 + REPLICA_S))


class Reports(unittest.TestCase):
    def test_a_client_of_which_nothing_succeeded_fails_the_run(self):
        ledger = Ledger(planned={"a", "b"})
        ledger.record(Call("a", 0.0, ok=True))
        text, held = ledger.report()
        self.assertFalse(held)
        self.assertIn("- NOTHING of b succeeded", text)
        ledger.record(Call("b", 0.0, ok=True))
        self.assertTrue(ledger.report()[1])

    def test_nothing_at_all_proves_nothing(self):
        self.assertFalse(Ledger().report()[1])


if __name__ == "__main__":
    unittest.main()
