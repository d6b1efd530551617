/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/executable.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_MAX_BYTES 256 /* the kernel reads no more of a first line */
/* The names of needed libraries are near the start of a program. */
#define SCAN_BYTES (64u << 20)

/* Read LINE_MAX_BYTES at most. Return their number, or -1. */
static ssize_t read_begin(const char *path, void *out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n = fd < 0 ? -1 : read(fd, out, LINE_MAX_BYTES);

	if (fd >= 0)
		close(fd);
	return n;
}

bool executable_lacks_interpreter(const char *path, char *out, size_t size)
{
	char line[LINE_MAX_BYTES + 1], *name = line + 2;
	ssize_t n = read_begin(path, line);

	if (n < 3 || line[0] != '#' || line[1] != '!')
		return false;
	line[n] = '\0';
	name[strcspn(name, "\n")] = '\0';
	name += strspn(name, " \t");
	name[strcspn(name, " \t")] = '\0';
	if (!*name || !access(name, F_OK))
		return false;
	snprintf(out, size, "%s", name);
	return true;
}

const char *executable_interpreter_hint(const char *interpreter)
{
	size_t size = strlen(interpreter);

	return size && interpreter[size - 1] == '\r'
		       ? " (the first line ends in a carriage return, as files from Windows do: "
			 "sed -i 's/\\r$//' FILE)"
		       : "";
}

bool executable_is_binary(const char *path, char *machine, size_t size)
{
	static const struct {
		int number; /* e_machine of an ELF file */
		const char *name;
	} known[] = {{EM_386, "x86"},	  {EM_ARM, "arm"},	   {EM_X86_64, "x86_64"},
		     {EM_PPC64, "ppc64"}, {EM_AARCH64, "aarch64"}, {EM_RISCV, "riscv"},
		     {EM_S390, "s390"},	  {258, "loongarch"}};
	unsigned char begin[LINE_MAX_BYTES];
	ssize_t n = read_begin(path, begin);
	int number;

	if (machine && size)
		machine[0] = '\0';
	if (n < 20 || memcmp(begin, ELFMAG, SELFMAG)) {
		/* As shells do: text has no NUL in its first line. */
		const void *line_end = n > 0 ? memchr(begin, '\n', (size_t)n) : NULL;
		size_t line = line_end ? (size_t)((const unsigned char *)line_end - begin)
				       : (size_t)(n > 0 ? n : 0);

		return memchr(begin, '\0', line) != NULL;
	}
	number = begin[EI_DATA] == ELFDATA2MSB ? begin[18] << 8 | begin[19]
					       : begin[19] << 8 | begin[18];
	for (size_t i = 0; machine && i < sizeof known / sizeof *known; i++)
		if (known[i].number == number)
			snprintf(machine, size, "%s", known[i].name);
	return true;
}

bool executable_uses_open_mpi(const char *path)
{
	static const char soname[] = "libmpi.so.40"; /* of Open MPI 4 and 5; MPICH's is 12 */
	struct stat status;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool found = false;

	if (fd < 0)
		return false;
	if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_size > 4) {
		size_t size = status.st_size < SCAN_BYTES ? (size_t)status.st_size : SCAN_BYTES;
		const char *file = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);

		if (file != MAP_FAILED) {
			/* With the NUL that ends a name in the string table. */
			found = !memcmp(file, "\177ELF", 4) &&
				memmem(file, size, soname, sizeof soname);
			munmap((void *)file, size);
		}
	}
	close(fd);
	return found;
}

/* ---- looking a program up ---- */

/* What was found under the name; the best match of all directories in PATH. */
enum found { FOUND_NOTHING, FOUND_DIR, FOUND_FILE, FOUND_PROGRAM };

static enum found classify_path(const char *path)
{
	struct stat status;

	if (stat(path, &status))
		return FOUND_NOTHING;
	if (S_ISDIR(status.st_mode))
		return FOUND_DIR;
	return S_ISREG(status.st_mode) && !access(path, X_OK) ? FOUND_PROGRAM : FOUND_FILE;
}

/* Search as execvp does. path is filled in if a program is found. */
static enum found find_executable(const char *name, const struct env *env, char *path, size_t size)
{
	const char *list = env_get(env, "PATH"), *at = list ? list : "/usr/local/bin:/bin:/usr/bin";
	enum found best = FOUND_NOTHING;

	if (!*name)
		return FOUND_NOTHING;
	if (strchr(name, '/')) {
		snprintf(path, size, "%s", name);
		return classify_path(path);
	}
	do {
		size_t length = strcspn(at, ":");
		enum found found;

		snprintf(path, size, "%.*s/%s", length ? (int)length : 1, length ? at : ".", name);
		found = classify_path(path);
		if (found == FOUND_PROGRAM)
			return found;
		/* Ignore a directory of that name in a directory of PATH. */
		if (found > best && found != FOUND_DIR)
			best = found;
		at += length;
	} while (*at++);
	return best;
}

bool executable_find(const char *name, const struct env *env, char *path, size_t size)
{
	return find_executable(name, env, path, size) == FOUND_PROGRAM;
}

int executable_check(const char *name, const struct env *env, struct error *err)
{
	char path[4096], interpreter[300];

	if (!*name)
		return error_set(
			err, ERR_INPUT,
			"no program to run: PROGRAM is empty. Check for an unset variable.");
	switch (find_executable(name, env, path, sizeof path)) {
	case FOUND_PROGRAM:
		if (!executable_lacks_interpreter(path, interpreter, sizeof interpreter))
			return 0;
		return error_set(err, ERR_INPUT,
				 "cannot start the program %s: its first line names the "
				 "interpreter %s, which is missing%s",
				 name, interpreter, executable_interpreter_hint(interpreter));
	case FOUND_FILE:
		return error_set(err, ERR_UNAVAILABLE,
				 "the program %s is not executable. Run chmod +x on it, or put its "
				 "interpreter before it.",
				 name);
	case FOUND_DIR:
		return error_set(err, ERR_UNAVAILABLE,
				 "%s is a directory. Name the program inside it.", name);
	default:
		return error_set(
			err, ERR_INPUT, "cannot find the program %s%s", name,
			strchr(name, '/') ? ""
			: strcmp(name, "python") != 0
				? " in PATH. Write ./FILE for a file in the current directory."
			: executable_find("python3", env, path, sizeof path)
				? " in PATH. Use python3, or activate the environment that has "
				  "it (venv, conda, module load)."
				: " in PATH. Activate the environment that has it (venv, conda, "
				  "module load).");
	}
}
