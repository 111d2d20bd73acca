# The pure core.
coordd_library(server_test_support SOURCES effects_text.cc known_slots.cc random_messages.cc story.cc story_schedules.cc LIBS coordd_server_core)

coordd_test(server_story_test SOURCES story_test.cc LIBS server_test_support PURE)
target_compile_definitions(server_story_test
  PRIVATE COORDD_SCRIPTS_DIR="${CMAKE_SOURCE_DIR}/tests/scripts")

coordd_unit_tests(server_core_tests PREFIX server_ LIBS server_test_support PURE
  FILES admission blame connection_gate coordinator_drain_durability coordinator_durability coordinator_fuzz coordinator_repair_durability
        coordinator_sets_durability coordinator_slots_durability coordinator_state coordinator_suspend drains durability_fuzz end_rule fusion_planner generation_model generation_slots heartbeat_pace http2_refusal
        invariants job_record join_state kv_state lateness node_members process_set_requests resume_merge process_sets rank_set readiness_bundles readiness_join readiness_model readiness_table
        reforming rendezvous_state repair_plan schedule_detector server_options shared_reports validate_message wake_rule)
# Against hangs only: 240 histories of 1,500 steps are seconds as users build it, two minutes unoptimised under a sanitizer
# on a busy machine; first, so that others run beside it.
set_tests_properties(server_coordinator_fuzz_test PROPERTIES TIMEOUT 600 COST 80)
