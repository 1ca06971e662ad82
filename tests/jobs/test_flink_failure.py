"""What is told of a failed job."""

from jobs.flink_failure import summarize

PYTHON = """\
An error occurred while calling o273.get.
: java.util.concurrent.ExecutionException: a.ProgramInvocationException: Job failed
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
Caused by: a.B: Error from SDK harness for instruction 7: Traceback (most recent call last):
  File "/x/sdk_worker.py", line 311, in _execute
    response = task()
               ^^^^^^
  File "pyflink/fn_execution/beam/beam_operations_fast.pyx", line 192, in process
  File "/x/operator.py", line 80, in process_element
    outputs = self._scorer.step(shard, batch)
operators.model.ModelError: refused
  found:  9 inputs
  remedy: export it again

\tat org.apache.beam.FnApiControlClient$ResponseStreamObserver.onNext(F.java:180)
\t... 1 more
"""

TOLD = "operators.model.ModelError: refused\n  found:  9 inputs\n  remedy: export it again"

CHAIN = PYTHON.replace(
    TOLD + "\n",
    """KeyError: 3

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/operator.py", line 81, in process_element
    raise RuntimeError("second")
RuntimeError: second
""",
)

JAVA = """\
An error occurred while calling o1.get.
: java.util.concurrent.ExecutionException: x
\tat a.B.c(B.java:1)
Caused by: org.apache.flink.JobException: Recovery is suppressed by NoRestart
\tat a.B.c(B.java:1)
Caused by: java.io.IOException: No space left on device
\tat a.B.c(B.java:1)
"""


def test_a_python_error_is_told_without_its_frames() -> None:
    """The message of the operator's own exception, all of its lines, none of Java's."""
    assert TOLD == summarize(PYTHON)


def test_the_last_of_a_chain_of_errors_is_told() -> None:
    """It is the one that ended the job."""
    assert "RuntimeError: second" == summarize(CHAIN)


def test_a_java_error_is_told_by_its_innermost_cause() -> None:
    """The outer ones only say that something failed."""
    assert "java.io.IOException: No space left on device" == summarize(JAVA)


def test_anything_else_is_told_by_its_first_line() -> None:
    """Better than nothing."""
    assert "something broke" == summarize("something broke\nat length\n")
    assert "no message" == summarize("")
