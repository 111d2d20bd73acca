# What must hold over everything that coordd ever sends: for tests, the simulators and the fuzzers.
coordd_library(coordd_server_invariants BUSY PURE
  SOURCES support/invariants.cc support/invariants_resume.cc support/invariants_sets.cc support/invariants_slots.cc
  LIBS coordd_server_core)

# The pure core.
coordd_library(server_test_support SOURCES support/effects_text.cc support/known_slots.cc support/random_messages.cc support/story.cc support/story_command.cc support/story_schedules.cc LIBS coordd_server_invariants)

coordd_test(server_story_test SOURCES job/story_test.cc LIBS server_test_support PURE)
target_compile_definitions(server_story_test
  PRIVATE COORDD_SCRIPTS_DIR="${CMAKE_SOURCE_DIR}/tests/scripts")

coordd_unit_tests(server_core_tests PREFIX server_ LIBS server_test_support PURE
  FILES model/access_rules model/event_log job/admission job/blame job/coordinator_access job/coordinator_drain_durability job/coordinator_durability job/coordinator_missed job/coordinator_fuzz job/coordinator_repair_durability
        job/coordinator_sets_durability job/coordinator_slots_durability job/coordinator_state job/coordinator_suspend job/drains job/durability_fuzz job/end_rule job/ended_jobs job/gpu_report generation/fusion_planner generation/comm_waits generation/device_waits generation/generation_model generation/generation_slots model/heartbeat_pace
        support/invariants model/job_record generation/join_state job/key_table job/kv_state generation/lateness generation/named_set_requests members/node_members generation/process_set_requests generation/resume_merge generation/process_sets members/rank_set generation/readiness_bundles generation/readiness_join generation/readiness_model generation/readiness_parts generation/readiness_table
        job/reforming job/rendezvous_state job/repair_plan job/said_sets generation/schedule_detector model/server_options job/told_progress job/trace_state job/waiting_joins job/shared_reports model/validate_message generation/wake_rule generation/set_negotiation generation/negotiated_sets generation/generation_parts job/job_parts job/job_return job/job_rules job/next_generation job/wrong_tokens)
target_compile_definitions(server_core_tests PRIVATE COORDD_SECURITY_DOCUMENT="${CMAKE_SOURCE_DIR}/docs/SECURITY.md")
coordd_unit_tests(server_store_return_tests PREFIX server_ LIBS server_test_support PURE FILES job/coordinator_store_return job/store_return)
# Against hangs only: 240 histories of 1,500 steps are seconds as users build it, two minutes unoptimised under a sanitizer
# on a busy machine; first, so that others run beside it.
set_tests_properties(server_coordinator_fuzz_test PROPERTIES TIMEOUT 600 COST 80)
