# cmake -DINPUT=FILE -DOUTPUT=FILE.cc -DNAME=kName -P embed.cmake: a file as an array of C++.
file(READ ${INPUT} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include <cstddef>\n\n"
  "extern const unsigned char ${NAME}[];\nextern const size_t ${NAME}Size;\n"
  "const unsigned char ${NAME}[] = {${bytes}};\nconst size_t ${NAME}Size = ${size};\n")
