/* SPDX-License-Identifier: BSD-3-Clause */
/* What can be said of a program by looking at its file. Reads files, starts nothing. */
#ifndef BERTH_PROCESS_EXECUTABLE_H
#define BERTH_PROCESS_EXECUTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* The interpreter that the first line of path names, where that one is not there; out is cut at
 * size. False: path is no script, cannot be read, or its interpreter is there (out untouched). */
bool executable_lacks_interpreter(const char *path, char *out, size_t size);

/* A sentence's part for people: " (the first line ends in a carriage return: ...)" where
 * interpreter ends in one, as files from Windows do, else "". */
const char *executable_interpreter_hint(const char *interpreter);

/* Is path linked with Open MPI? Not seen: what is loaded later (Python's mpi4py), scripts. */
bool executable_uses_open_mpi(const char *path);

#endif
