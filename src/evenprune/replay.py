"""Run the same work again and again: plainly, or captured once as a CUDA graph and replayed.

The work must touch the same tensors at every call and must not wait for the device. What it reads from Python
(a learning rate, say) is frozen at the capture; `key` names it, and another key captures anew.
"""

from collections.abc import Callable, Hashable

import torch

WARM_UP = 3  # plain calls before a capture: kernels are compiled and chosen, momenta come into being


class Unsupported(RuntimeError):
    """What makes training fast and fails with this model; the message says how to turn it off."""


class Replay:
    def __init__(self, work: Callable[[], None], *, device: torch.device, graph: bool) -> None:
        self.work = work
        self.graph = graph and device.type == "cuda"
        self.calls = 0
        self.key: Hashable = None
        self.captured: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if self.graph else None  # type: ignore[no-untyped-call]

    def __call__(self, key: Hashable = ()) -> None:
        """Do the work once."""
        if not self.graph:
            self.work()
        elif self.calls < WARM_UP:
            self._aside()
        else:
            if self.captured is None or key != self.key:
                self._capture(key)
            assert self.captured is not None
            self.captured.replay()
        self.calls += 1

    def forget(self) -> None:
        """Give the memory of the captured work back; another call captures it anew."""
        self.captured = None

    def _aside(self) -> None:
        """The work itself, on the stream that will capture it."""
        assert self.stream is not None
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.work()
        current.wait_stream(self.stream)

    def _capture(self, key: Hashable) -> None:
        self.forget()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.work()
        except RuntimeError as error:
            if full := _out_of_memory(error):
                raise full from None
            raise Unsupported(
                f"A step cannot be captured as a CUDA graph: {error}\n"
                "Something in the model, the augmentation or the optimizer reads a value back from the GPU. "
                "Train with Recipe(graph=False)."
            ) from error
        self.captured, self.key = graph, key


def _out_of_memory(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """What ended a capture may be told by the error that ending it raised in turn."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__context__
    return error
