# The pure core. Each test is one program.
coordd_library(server_test_support SOURCES effects_text.cc story.cc LIBS coordd_server_core)

coordd_test(server_story_test SOURCES story_test.cc LIBS server_test_support PURE)
target_compile_definitions(server_story_test
  PRIVATE COORDD_SCRIPTS_DIR="${CMAKE_SOURCE_DIR}/tests/scripts")

foreach(name admission coordinator_fuzz coordinator_state drains durability_fuzz end_rule fusion_planner generation_model invariants join_state kv_state
             process_set_requests process_sets rank_set readiness_join
             readiness_model readiness_table reforming rendezvous_state repair_plan server_options topology validate_message)
  coordd_test(server_${name}_test SOURCES ${name}_test.cc LIBS server_test_support PURE)
endforeach()
coordd_test(server_coordinator_durability_test SOURCES coordinator_durability_test.cc coordinator_drain_durability_test.cc
  coordinator_repair_durability_test.cc coordinator_suspend_test.cc job_record_test.cc
  LIBS server_test_support PURE)
coordd_test(server_schedule_detector_test SOURCES schedule_detector_test.cc lateness_test.cc LIBS server_test_support PURE)
# Against hangs only: 240 histories of 1,500 steps are seconds as users build it, two minutes unoptimised under a sanitizer
# on a busy machine.
set_tests_properties(server_coordinator_fuzz_test PROPERTIES TIMEOUT 600)
