"""Messages and interrupted calls between nodes, each rank one of its own. Run by c10d_ranks.py."""

from check_c10d_works import (  # noqa: F401
    check_a_message_of_another_size_is_an_error_that_names_the_sender, check_a_signal_interrupts_a_call_that_then_goes_on,
    check_large_messages_cross_and_do_not_wait_for_each_other,
    check_objects_are_sent, check_receives_from_any_source, check_sends_and_receives, check_several_receives_from_any_source)
