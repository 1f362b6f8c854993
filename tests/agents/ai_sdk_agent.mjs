// An agent on Vercel's AI SDK, as its documentation has it: `ai_sdk_agent.mjs PROMPT`. It asks in OpenAI's Responses.
import { execSync } from 'node:child_process'
import { createRequire } from 'node:module'

// The SDK is installed elsewhere, and Node looks for packages beside the program.
const require = createRequire(process.env.SDK)
const { stepCountIs, streamText, tool } = require('ai')
const { createOpenAI } = require('@ai-sdk/openai')
const { z } = require('zod')

const bash = tool({
  description: 'Runs a command.',
  inputSchema: z.object({ command: z.string() }),
  execute: async ({ command }) => execSync(command, { encoding: 'utf8' }),
})
const model = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY })('policy')
const talk = streamText({
  model,
  tools: { bash },
  stopWhen: stepCountIs(20),
  system: 'You work with a shell.',
  prompt: process.argv[2],
})
for await (const text of talk.textStream) process.stdout.write(text)
