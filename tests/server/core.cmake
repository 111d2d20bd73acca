# The pure core. Each test is one program.
coordd_library(server_test_support SOURCES effects_text.cc story.cc LIBS coordd_server_core)

coordd_test(server_story_test SOURCES story_test.cc LIBS server_test_support)
target_compile_definitions(server_story_test
  PRIVATE COORDD_SCRIPTS_DIR="${CMAKE_SOURCE_DIR}/tests/scripts")
