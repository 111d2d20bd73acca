"""Factors of a reduction, for every framework."""

from coordd.exceptions import InvalidArgumentError


def check_factors(prescale_factor: float, postscale_factor: float) -> None:
    """ValueError: a factor is 0 or nan, which is no other rank's either."""
    if prescale_factor == 0 or postscale_factor == 0:
        raise InvalidArgumentError("prescale_factor and postscale_factor must not be 0: the result would be nothing but zeros",
                                   "INVALID_ARGUMENT")
    if prescale_factor != prescale_factor or postscale_factor != postscale_factor:
        raise InvalidArgumentError(f"prescale_factor is {prescale_factor}, postscale_factor {postscale_factor}: expected numbers",
                                   "INVALID_ARGUMENT")
