# Where TARGET looks for libraries, as built and as installed: in these folders, then in CMAKE_INSTALL_RPATH's. What is built looks in
# CMAKE_BUILD_RPATH's, too, such as those of a UCX that is not the system's.
#
# There is to be no empty name among them: that is the folder in which a user happens to be, whose libraries are anybody's. CMake ends
# each list with one that an install replaces, so the build has what is installed wherever that will do.
function(coordd_looks_in target)
  set(installed ${ARGN} ${CMAKE_INSTALL_RPATH})
  set(built ${CMAKE_BUILD_RPATH})
  list(FILTER installed EXCLUDE REGEX "^$")
  list(FILTER built EXCLUDE REGEX "^$")
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${installed}" BUILD_RPATH "${installed};${built}")
  if(NOT built)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  else()
    get_property(said GLOBAL PROPERTY coordd_looks_in_said)
    if(NOT said)
      set_property(GLOBAL PROPERTY coordd_looks_in_said ON)
      message(NOTICE "CMAKE_BUILD_RPATH is set, so programs in the build folder, but not installed ones, look for libraries also in the folder "
                     "in which they are started: run them in folders of your own")
    endif()
  endif()
endfunction()
