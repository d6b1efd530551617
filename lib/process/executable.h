/* SPDX-License-Identifier: BSD-3-Clause */
/* Facts about a program from its file alone. Reads files, starts nothing. */
#ifndef BERTH_PROCESS_EXECUTABLE_H
#define BERTH_PROCESS_EXECUTABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"

/* Look a program up as execvp does, with env's PATH. path receives what was found last. */
bool executable_find(const char *name, const struct env *env, char *path, size_t size);
/* Check that execvp would start it. Return 0, -ERR_INPUT if there is no such program, or
 * -ERR_UNAVAILABLE if it exists but may not be executed. err names it. */
int executable_check(const char *name, const struct env *env, struct error *err);

/* Does the first line of path name an interpreter that is missing? If so, copy its name to out (cut
 * at size). False if path is not a script, cannot be read, or its interpreter exists; out is
 * untouched then. */
bool executable_lacks_interpreter(const char *path, char *out, size_t size);

/* A part of a sentence for people: " (the first line ends in a carriage return: ...)" if
 * interpreter ends in one, as in files from Windows, else "". */
const char *executable_interpreter_hint(const char *interpreter);

/* Is path a file that no shell can run: a program for whichever machine, or other data? machine, if
 * not NULL, receives "aarch64" or "". Async-signal-safe if machine is NULL. */
bool executable_is_binary(const char *path, char *machine, size_t size);

/* Is path linked with Open MPI? Scripts and libraries loaded later (Python's mpi4py) are not
 * detected. */
bool executable_uses_open_mpi(const char *path);

#endif
