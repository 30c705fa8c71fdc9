"""The tiny Llama of the serving tests, for runs that ask a language model."""

from tests.serve.conftest import kernels as kernels
from tests.serve.conftest import tiny_folder as tiny_folder
