/* A stand-in for libnvfm.so, the client library of NVIDIA's Fabric Manager, with Fabric Manager and the board behind it.
 *
 * Structures, their versions and the return codes are those that nv_fm_types.h and nv_fm_agent.h of driver 575 document,
 * and the section "Fabric Manager SDK" of NVIDIA's Fabric Manager User Guide. What these say is refused is refused.
 *
 * The state is in a file, whose path is the address to which one connects, so that it outlives every process:
 *   run N               how often Fabric Manager was started; a connection to an earlier run is lost
 *   mode M              FABRIC_MODE
 *   partition ID ACTIVE MODULE,UUID,ADDRESS ...     "-" for what is not reported
 * Beside it, FILE.errors has what calls return instead, a line each, which is used up: "fmConnect -9"; the codes "crash"
 * and "hang" are possible too. FILE.calls gets a line for each call that changes something.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { SUCCESS = 0, BADPARAM = -1, GENERIC = -2, NOT_SUPPORTED = -3, UNINITIALIZED = -4, VERSION_MISMATCH = -6,
       IN_USE = -7, CONNECTION_NOT_VALID = -9 };
enum { INET = 1, UNIX = 2, MAX_GPUS = 16, MAX_PARTITIONS = 64, LINE = 4096 };

typedef struct {
    unsigned int version;
    char addressInfo[256];
    unsigned int timeoutMs;
    unsigned int addressIsUnixSocket;
    enum { UNKNOWN_TYPE, INET_TYPE, UNIX_TYPE, VSOCK_TYPE } addressType;
} ConnectParams;

typedef struct { unsigned int domain, bus, device, function; } PciDevice;

typedef struct {
    unsigned int physicalId;
    char uuid[80];
    char pciBusId[32];
    unsigned int numNvLinksAvailable, maxNumNvLinks, nvlinkLineRateMBps;
} Gpu;

typedef struct {
    unsigned int partitionId, isActive, numGpus;
    Gpu gpuInfo[MAX_GPUS];
} Partition;

typedef struct {
    unsigned int version, numPartitions, maxNumPartitions;
    Partition partitionInfo[MAX_PARTITIONS];
} PartitionList;

#define VERSION_OF(type, number) ((unsigned int)(sizeof(type) | (number) << 24))

typedef struct { char path[256]; int run; } Handle;

static int initialized;
static int run, mode;
static Partition partitions[MAX_PARTITIONS];
static unsigned int count;

static FILE *beside(const char *path, const char *suffix, const char *how)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    return fopen(name, how);
}

/* Reads the state; 0 if Fabric Manager doesn't run. */
static int load(const char *path)
{
    static char line[LINE];
    FILE *file = beside(path, "", "r");
    if (!file)
        return 0;
    count = 0;
    while (fgets(line, sizeof line, file)) {
        char *rest = line, *word = strsep(&rest, " \n");
        if (!strcmp(word, "run"))
            run = atoi(rest);
        else if (!strcmp(word, "mode"))
            mode = atoi(rest);
        else if (!strcmp(word, "partition")) {
            Partition *partition = &partitions[count++];
            memset(partition, 0, sizeof *partition);
            partition->partitionId = atoi(strsep(&rest, " \n"));
            partition->isActive = atoi(strsep(&rest, " \n"));
            while ((word = strsep(&rest, " \n")) && *word) {
                Gpu *gpu = &partition->gpuInfo[partition->numGpus++];
                gpu->physicalId = atoi(strsep(&word, ","));
                char *uuid = strsep(&word, ",");
                if (strcmp(uuid, "-"))
                    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
                if (strcmp(word, "-"))
                    snprintf(gpu->pciBusId, sizeof gpu->pciBusId, "%s", word);
                gpu->numNvLinksAvailable = gpu->maxNumNvLinks = 12;
                gpu->nvlinkLineRateMBps = 25000;
            }
        }
    }
    fclose(file);
    return 1;
}

static void save(const char *path)
{
    char old[512], now[512];
    snprintf(old, sizeof old, "%s.new", path);
    snprintf(now, sizeof now, "%s", path);
    FILE *file = fopen(old, "w");
    fprintf(file, "run %d\nmode %d\n", run, mode);
    for (unsigned int i = 0; i < count; i++) {
        fprintf(file, "partition %u %u", partitions[i].partitionId, partitions[i].isActive);
        for (unsigned int j = 0; j < partitions[i].numGpus; j++) {
            Gpu *gpu = &partitions[i].gpuInfo[j];
            fprintf(file, " %u,%s,%s", gpu->physicalId, *gpu->uuid ? gpu->uuid : "-", *gpu->pciBusId ? gpu->pciBusId : "-");
        }
        fprintf(file, "\n");
    }
    fclose(file);
    rename(old, now);
}

/* What a call returns instead of what it should: 1 if it does. */
static int injected(const char *path, const char *call, int *code)
{
    static char rest[65536];
    char line[LINE], name[128], what[128];
    int hit = 0;
    FILE *file = beside(path, ".errors", "r");
    if (!file)
        return 0;
    *rest = 0;
    while (fgets(line, sizeof line, file)) {
        if (!hit && sscanf(line, "%127s %127s", name, what) == 2 && !strcmp(name, call))
            hit = 1;
        else
            strncat(rest, line, sizeof rest - strlen(rest) - 1);
    }
    fclose(file);
    if (!hit)
        return 0;
    file = beside(path, ".errors", "w");
    fputs(rest, file);
    fclose(file);
    if (!strcmp(what, "crash"))
        abort();
    while (!strcmp(what, "hang"))
        pause();
    *code = atoi(what);
    return 1;
}

static Partition *numbered(unsigned int number)
{
    for (unsigned int i = 0; i < count; i++)
        if (partitions[i].partitionId == number)
            return &partitions[i];
    return NULL;
}

static int overlaps_an_active_one(const Partition *one)
{
    for (unsigned int i = 0; i < count; i++)
        for (unsigned int j = 0; partitions[i].isActive && j < partitions[i].numGpus; j++)
            for (unsigned int k = 0; k < one->numGpus; k++)
                if (partitions[i].gpuInfo[j].physicalId == one->gpuInfo[k].physicalId)
                    return 1;
    return 0;
}

/* What is checked before each call. */
static int begin(Handle *handle, const char *call)
{
    int code;
    if (!initialized)
        return UNINITIALIZED;
    if (!handle)
        return BADPARAM;
    if (injected(handle->path, call, &code))
        return code;
    if (!load(handle->path) || run != handle->run)
        return CONNECTION_NOT_VALID;
    return SUCCESS;
}

int fmLibInit(void)
{
    if (initialized)
        return IN_USE;
    initialized = 1;
    return SUCCESS;
}

int fmLibShutdown(void)
{
    if (!initialized)
        return UNINITIALIZED;
    initialized = 0;
    return SUCCESS;
}

int fmConnect(ConnectParams *params, void **out)
{
    int code;
    if (!initialized)
        return UNINITIALIZED;
    if (!params || !out)
        return BADPARAM;
    if (params->version != VERSION_OF(ConnectParams, 2))
        return VERSION_MISMATCH;
    if ((int)params->addressType != UNIX && (int)params->addressType != INET)
        return BADPARAM;
    if (((int)params->addressType == UNIX) != (params->addressIsUnixSocket == 1) || !params->timeoutMs)
        return BADPARAM;
    if (injected(params->addressInfo, "fmConnect", &code))
        return code;
    if ((int)params->addressType == INET || !load(params->addressInfo))
        return CONNECTION_NOT_VALID;
    Handle *handle = malloc(sizeof *handle);
    snprintf(handle->path, sizeof handle->path, "%s", params->addressInfo);
    handle->run = run;
    *out = handle;
    return SUCCESS;
}

int fmDisconnect(void *handle)
{
    if (!initialized)
        return UNINITIALIZED;
    if (!handle)
        return BADPARAM;
    free(handle);
    return SUCCESS;
}

int fmGetSupportedFabricPartitions(void *handle, PartitionList *list)
{
    int code = begin(handle, "fmGetSupportedFabricPartitions");
    if (code != SUCCESS)
        return code;
    if (!list)
        return BADPARAM;
    if (list->version != VERSION_OF(PartitionList, 1))
        return VERSION_MISMATCH;
    if (mode == 0)
        return NOT_SUPPORTED;
    list->numPartitions = count;
    list->maxNumPartitions = MAX_PARTITIONS;
    memcpy(list->partitionInfo, partitions, sizeof partitions);
    return SUCCESS;
}

static int activate(Handle *handle, const char *call, unsigned int number, PciDevice *vfs, unsigned int vf_count)
{
    int code = begin(handle, call);
    if (code != SUCCESS)
        return code;
    if (mode != (vfs ? 2 : 1))
        return NOT_SUPPORTED;
    Partition *partition = numbered(number);
    if (!partition || (vfs && vf_count != partition->numGpus))
        return BADPARAM;
    if (partition->isActive || overlaps_an_active_one(partition))
        return IN_USE;
    partition->isActive = 1;
    save(handle->path);
    FILE *file = beside(handle->path, ".calls", "a");
    fprintf(file, "activate %u", number);
    for (unsigned int i = 0; i < vf_count; i++)
        fprintf(file, " %04x:%02x:%02x.%x", vfs[i].domain, vfs[i].bus, vfs[i].device, vfs[i].function);
    fprintf(file, "\n");
    fclose(file);
    return SUCCESS;
}

int fmActivateFabricPartition(void *handle, unsigned int number)
{
    return activate(handle, "fmActivateFabricPartition", number, NULL, 0);
}

int fmActivateFabricPartitionWithVFs(void *handle, unsigned int number, PciDevice *vfs, unsigned int vf_count)
{
    return activate(handle, "fmActivateFabricPartitionWithVFs", number, vfs, vf_count);
}

int fmDeactivateFabricPartition(void *handle, unsigned int number)
{
    int code = begin(handle, "fmDeactivateFabricPartition");
    if (code != SUCCESS)
        return code;
    Partition *partition = numbered(number);
    if (!partition)
        return BADPARAM;
    if (!partition->isActive)
        return UNINITIALIZED;
    partition->isActive = 0;
    save(((Handle *)handle)->path);
    FILE *file = beside(((Handle *)handle)->path, ".calls", "a");
    fprintf(file, "deactivate %u\n", number);
    fclose(file);
    return SUCCESS;
}
