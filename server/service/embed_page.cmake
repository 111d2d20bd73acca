# Turns a text file into a C++ string: cmake -DIN=page.html -DOUT=page.cc -P embed_page.cmake
file(READ ${IN} page)
string(FIND "${page}" ")coordd_page\"" clash)
if(NOT clash EQUAL -1)
  message(FATAL_ERROR "${IN} holds the delimiter of its own literal")
endif()
file(WRITE ${OUT} "#include \"server/service/http_endpoints.h\"\n\nnamespace coordd {\nconst char kStatusPage[] = R\"coordd_page(${page})coordd_page\";\n}\n")
