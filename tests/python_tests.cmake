# Tests that drive the finished program: one ctest test for each file, so that a failure names the
# file to run by hand:  CKFS_BIN=build/release/ckfs python3 tests/cli/test_verbs.py

# ckfs_script_test(NAME label LABELS.. COMMAND ... [PROPERTIES ...])
function(ckfs_script_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "COMMAND;PROPERTIES" ${ARGN})
  add_test(NAME ${prefix}${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${prefix}${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT}
    SKIP_RETURN_CODE 77
    ENVIRONMENT "CKFS_BIN=$<TARGET_FILE:ckfs>;CKFS_BUILD=${PROJECT_BINARY_DIR};CKFS_SANITIZE=${CKFS_SANITIZE};PYTHONDONTWRITEBYTECODE=1"
    ${ARG_PROPERTIES})
endfunction()

# What a sanitizer sees of cli: files from strangers, and the verbs that write. The others parse
# arguments and print, or hold the program to limits of memory and time, which a sanitizer has not.
set(sanitized_cli hostile export verbs)
# And of golden: every encoding, kind of source and container. The others look at names, labels,
# counts of bytes, and values whose code these reach.
set(sanitized_golden views torch_files orbax_sources experts maxtext_arrays maxtext_trees)

# ckfs_python_suite(FOLDER TIMEOUT python...): every FOLDER/test_*.py.
function(ckfs_python_suite folder timeout)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/test_*.py)
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "^test_" "" name ${name})
    if(sanitizer AND DEFINED sanitized_${folder} AND NOT name IN_LIST sanitized_${folder})
      continue()
    endif()
    ckfs_script_test(${folder}.${name} LABEL ${folder} TIMEOUT ${timeout} COMMAND ${ARGN} ${file})
  endforeach()
endfunction()

# A limit for what hangs: a sanitizer on a busy machine needs a quarter of it.
ckfs_python_suite(golden 3600 ${CKFS_PYTHON})
# The longest go first, or a CPU is idle while the other ends them.
set(cost 1000)
foreach(name maxtext_trees maxtext_arrays torch_files views)
  math(EXPR cost "${cost} + 1")
  set_tests_properties(${prefix}golden.${name} PROPERTIES COST ${cost})
endforeach()
ckfs_python_suite(support 300 ${CKFS_PYTHON})
ckfs_python_suite(cli 600 ${CKFS_PYTHON})
if(sanitizer)
  return()
endif()

# The fetcher against the stand-ins of tests/tools/object_server.py.
if(TARGET ckfs-fetcher)
  file(GLOB files CONFIGURE_DEPENDS fetcher/test_*.py)
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "^test_" "" name ${name})
    set(label cli)
    if(name STREQUAL "mounts")
      set(label mounted)
    endif()
    ckfs_script_test(fetcher.${name} LABEL ${label} TIMEOUT 600 COMMAND ${CKFS_PYTHON} ${file})
  endforeach()
endif()

file(GLOB checks CONFIGURE_DEPENDS lint/*)
foreach(check ${checks})
  get_filename_component(name ${check} NAME)
  if(NOT name MATCHES "\\.|__")
    ckfs_script_test(lint.${name} LABEL lint TIMEOUT 300 COMMAND ${check})
  endif()
endforeach()

# Mounted tests run twice: as root, and as a user who mounts through fusermount3.
file(GLOB files CONFIGURE_DEPENDS mounted/test_*.py)
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "^test_" "" name ${name})
  ckfs_script_test(mounted.${name} LABEL mounted TIMEOUT 600 COMMAND ${CKFS_PYTHON} ${file})
endforeach()

# Faults of the source and of the machine, as the user who runs them: root sees the most.
file(GLOB files CONFIGURE_DEPENDS faults/test_*.py)
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "^test_" "" name ${name})
  ckfs_script_test(faults.${name} LABEL mounted TIMEOUT 600 COMMAND ${CKFS_PYTHON} ${file})
endforeach()
set_tests_properties(${prefix}faults.deliveries PROPERTIES RUN_SERIAL TRUE)

ckfs_python_suite(docs 600 ${CKFS_PYTHON})
ckfs_python_suite(package 900 ${CKFS_PYTHON})
ckfs_python_suite(python 900 ${CKFS_HF_PYTHON})
ckfs_python_suite(loaders 900 ${CKFS_HF_PYTHON})
ckfs_python_suite(orbax 900 ${CKFS_ORBAX_PYTHON})
